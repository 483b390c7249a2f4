for (const range of document.querySelectorAll(".slider input")) {
  const cut = () => range.closest(".slider").style.setProperty("--cut", range.value + "%");
  range.addEventListener("input", cut); cut(); }
