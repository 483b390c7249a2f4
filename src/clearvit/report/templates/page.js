for (const range of document.querySelectorAll(".slider input")) {
  const cut = () => range.closest(".slider").style.setProperty("--cut", range.value + "%");
  range.addEventListener("input", cut); cut(); }
for (const sheet of document.querySelectorAll(".sheet")) {
  const shown = sheet.querySelector(".shown");
  const follow = () => {
    if (shown.getBoundingClientRect().top > 0.8 * innerHeight) shown.scrollIntoView(); };
  for (const label of sheet.querySelectorAll(".thumbnails label"))
    label.addEventListener("click", () => setTimeout(follow)); }
