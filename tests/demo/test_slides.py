import io

import numpy as np
from PIL import Image

from clearvit.demo.slides import SIZE, write_slides
from clearvit.report.elements import ImageElement, Paragraph, Section, Slider, Tabs
from clearvit.report.page import write_page


def png(color, size=(300, 100)):
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


def test_every_chapter_with_a_figure_gets_a_slide_of_its_first(tmp_path):
    slider = Slider(png("blue"), png("red"), ("raw", "cured"), alt="colors")
    figure = ImageElement(png("lime", (100, 400)), alt="high")
    sections = [
        Section("Where? (a/b)", (Paragraph("words"), slider, figure)),
        Section("Only words", (Paragraph("words"),)),
        Section("$x$", (Tabs("photo", (("cat", (figure,)),)),)),
    ]
    report = write_page(tmp_path / "report.html", "Report", sections)
    slides = write_slides(report, tmp_path / "slides")
    assert [one.name for one in slides] == ["00-where-a-b.png", "02-x.png"]
    expected = {500: ((0, 0, 255), (0, 255, 0)), 1100: ((255, 0, 0), (255, 255, 255))}
    for number, slide in enumerate(slides):  # before and after, side by side; one high figure
        image = Image.open(slide).convert("RGB")
        assert image.size == SIZE
        assert image.getpixel((1100, 500)) == expected[1100][number]
        assert image.getpixel((500 if number == 0 else 800, 500)) == expected[500][number]
        assert (np.asarray(image)[:100] < 128).any()  # the title
    assert write_slides(report, tmp_path / "slides") == slides  # a second demo replaces them
