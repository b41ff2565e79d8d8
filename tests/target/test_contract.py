"""Which files are contract modules, which are scripts, and which are neither."""

from __future__ import annotations

import ast

import pytest

from nanprobe.errors import UsageError
from nanprobe.target.contract import Contract, find_contract

MODEL, DATA, LOSS = "def build_model(): ...\n", "def build_data(): ...\n", "def compute_loss(model, batch): ...\n"
WHOLE = MODEL + DATA + LOSS


def find(code: str) -> Contract | None:
    return find_contract(ast.parse(code), "file.py")


@pytest.mark.parametrize(
    ("code", "has_optimizer"),
    [
        (WHOLE, False),
        (WHOLE + "def build_optimizer(model): ...\n", True),
        ("import torch\ntorch.manual_seed(0)\nSIZE = 3\n" + WHOLE, False),
        ("def build_model(width=3): ...\n" + DATA + "def compute_loss(model, batch, *, eps=1): ...\n", False),
        ("def build_model(*args): ...\n" + DATA + "def compute_loss(*args): ...\n", False),
        ("try:\n    import apex\nexcept ImportError:\n    apex = None\n" + WHOLE, False),
    ],
)
def test_contracts(code: str, has_optimizer: bool) -> None:
    assert find(code) == Contract(has_optimizer)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\n",
        "class A:\n    def build_model(self): ...\n",
        WHOLE + "if __name__ == '__main__':\n    train()\n",
        WHOLE + "for batch in build_data(): ...\n",
        WHOLE + "def main(): ...\nmain()\n",
        MODEL + "model = build_model()\n",
        MODEL + "with open('x'):\n    while True: ...\n",
        MODEL + "def main(): ...\nif True:\n    main()\n",
    ],
)
def test_scripts(code: str) -> None:
    assert find(code) is None


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (MODEL, "file.py: defines build_model but no build_data and compute_loss, and trains nothing when it is run"),
        (DATA + LOSS, "add build_model(), or give the script that trains"),
        (
            "def build_model(config): ...\n" + DATA + LOSS,
            "line 1: build_model(config) cannot be called as build_model()",
        ),
        (MODEL + DATA + "def compute_loss(batch): ...\n", "cannot be called as compute_loss(model, batch)"),
        (MODEL + DATA + "def compute_loss(model, batch, *, eps): ...\n", "give its other arguments defaults"),
        (WHOLE + "async def build_optimizer(model): ...\n", "cannot be called as build_optimizer(model)"),
    ],
)
def test_contracts_in_part(code: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        find(code)
    assert message in str(raised.value)
