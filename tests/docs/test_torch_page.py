"""The page on the torch profile names every option that there is, with its default."""

import json
import re
from pathlib import Path

from meshcost import TorchOptions
from meshcost.strategies.torch_readers import READERS

PAGE = (Path(__file__).parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")


def test_every_option_is_in_the_table_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|", PAGE, re.MULTILINE))
    options = TorchOptions().model_dump(mode="json")
    assert rows == {name: json.dumps(value).replace('"', "") for name, value in options.items()}


def test_the_table_says_who_reads_each_option():
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert rows == {name: ", ".join(readers) for name, readers in READERS.items()}
    assert READERS.keys() == TorchOptions.model_fields.keys()
