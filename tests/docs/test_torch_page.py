"""The page on the torch profile names every option that there is, with its default."""

import json
import re
from pathlib import Path

from meshcost import TorchOptions

PAGE = (Path(__file__).parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")


def test_every_option_is_in_the_table_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    options = TorchOptions().model_dump(mode="json")
    assert rows == {name: json.dumps(value).replace('"', "") for name, value in options.items()}
