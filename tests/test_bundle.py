"""Bundles: packed here, merged there, twice, damaged, or hostile."""

import json
import zipfile

import pandas as pd
import pytest

from lib import paths, store, tables
from lib.errors import InputError
from lib.measure import bundle


def measured(home, median=1.0):
    """Write one finished table of overheads with its provenance, as 01_machine would, and return its path."""
    path = paths.CEILINGS / "overheads_cpu.csv"
    path.unlink(missing_ok=True)
    row = ["cpu", "launch", median, 2.0, 3, "how", "h", "s"]
    store.write(pd.DataFrame([row], columns=tables.columns("overheads")), path, "overheads")
    store.write_meta(path, "overheads")
    return path


def test_there_and_back(home, tmp_path):
    path = measured(home)
    assert bundle.pack(tmp_path / "b.zip", "box") == ["ceilings/overheads_cpu.csv", "ceilings/overheads_cpu.meta.json"]
    folder, new = bundle.merge(tmp_path / "b.zip")
    assert (folder, new) == (paths.IMPORTED / "box", 2)
    assert (folder / "ceilings" / path.name).read_bytes() == path.read_bytes()
    assert bundle.merge(tmp_path / "b.zip") == (folder, 0), "merging again changes nothing"
    measured(home, median=5.0)
    bundle.pack(tmp_path / "c.zip", "box")
    assert bundle.merge(tmp_path / "c.zip") == (paths.IMPORTED / "box-v2", 2), "other content never overwrites"
    assert store.read(folder / "ceilings" / path.name, "overheads")["median_us"].tolist() == [1.0]
    assert bundle.merge(tmp_path / "b.zip", tmp_path / "reference")[0] == tmp_path / "reference" / "box"


def test_runs_that_were_cut_short_stay_behind(home, tmp_path):
    measured(home)
    paths.PROFILES.mkdir(parents=True)
    (paths.PROFILES / "run_W1_x_train.csv").write_text("torn")
    assert not any("run_W1" in name for name in bundle.pack(tmp_path / "b.zip", "box"))


def test_nothing_to_pack_and_nothing_overwritten(home, tmp_path):
    with pytest.raises(InputError, match="nothing to pack"):
        bundle.pack(tmp_path / "b.zip", "box")
    measured(home)
    bundle.pack(tmp_path / "b.zip", "box")
    with pytest.raises(InputError, match="not overwritten"):
        bundle.pack(tmp_path / "b.zip", "box")


def forged(path, index, files):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bundle.json", json.dumps(index))
        for name, content in files.items():
            archive.writestr(name, content)


@pytest.mark.parametrize(("index", "files", "words"), [
    ({"format": 1, "machine": "../evil", "files": {}}, {}, "no name of a machine"),
    ({"format": 1, "machine": "..", "files": {}}, {}, "no name of a machine"),
    ({"format": 9, "machine": "box", "files": {}}, {}, "format 9"),
    ({"format": 1, "machine": "box", "files": {"runs/../../x": "0"}}, {"runs/../../x": "a"}, "lies outside"),
    ({"format": 1, "machine": "box", "files": {"elsewhere/x.csv": "0"}}, {"elsewhere/x.csv": "a"}, "lies outside"),
    ({"format": 1, "machine": "box", "files": {"runs/x.csv": "0"}}, {"runs/x.csv": "a"}, "digest"),
    ({"format": 1, "machine": "box", "files": {"runs/x.csv": "0"}}, {}, "damaged"),
    ({"format": 1, "machine": "box",
      "files": {"runs/x.csv": "7d1a54127b222502f5b79b5fb0803061152a44f92b37e23c6527baf665d4da9a"}}, {"runs/x.csv": "abcdefg"},
     "b.zip: runs/x.csv does not fit its table"),
])
def test_hostile_and_damaged_bundles_write_nothing(home, tmp_path, index, files, words):
    forged(tmp_path / "b.zip", index, files)
    with pytest.raises(InputError, match=words):
        bundle.merge(tmp_path / "b.zip")
    assert not paths.IMPORTED.exists()


def test_no_zip_at_all(home, tmp_path):
    with pytest.raises(InputError, match="missing"):
        bundle.merge(tmp_path / "none.zip")
    (tmp_path / "b.zip").write_text("hello")
    with pytest.raises(InputError, match="no bundle or is damaged"):
        bundle.merge(tmp_path / "b.zip")
