"""An empty folder for each test of data, and the CSV file that it writes there."""

import pytest


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def written(tmp_path):
    def write(content):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "mine.csv").write_bytes(data)
        return tmp_path / "mine.csv"

    return write
