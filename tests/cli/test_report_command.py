import json

from typer.testing import CliRunner

from clearvit.cli import app
from tests.helpers.pages import page_of


def test_report_binds_what_it_finds_but_not_itself(tmp_path):
    page_of(tmp_path, "first")
    page_of(tmp_path, "second")
    arguments = ["report", str(tmp_path), "--out", str(tmp_path / "report.html"), "--json"]
    for _ in range(2):
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        assert len(json.loads(result.stdout)["chapters"]) == 2
