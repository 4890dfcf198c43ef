"""How ARR-COC is packaged: `modeling/`, which also travels with the weights, is installed as `arr_coc.modeling`."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent

# Run the file, not the package, so that a build imports nothing of it.
VERSION = runpy.run_path(str(ROOT / "arr_coc" / "version.py"))["__version__"]

# `make versions` runs chosen tests with exactly these lower bounds, and with the newest releases; all tests run with
# those in constraints.txt. Older ones fail (transformers 5.22, accelerate 1.2, PEFT 0.18, NumPy 1.26, matplotlib
# 3.10.6, PyAV 14.0) or were not tried (torch).
INSTALL_REQUIRES = [
    "torch>=2.13",
    "transformers>=5.23,<6",
    "accelerate>=1.3",
    "safetensors>=0.8",
    "huggingface_hub>=1.31",
    "peft>=0.19",
    "gguf>=0.19",  # reads language models in one file, as the one that arr-coc-135m is completed with
    "pillow>=11",
    "numpy>=2.0",
    "filelock>=4.2",  # the releases whose contenders leave a lock's content alone
]

EXTRAS_REQUIRE = {
    "train": ["datasets>=4.0", "tensorboard>=2.18", "faker>=40.0", "wonderwords>=3.0.1"],
    "eval": ["datasets>=4.0", "scipy>=1.13", "matplotlib>=3.10.7"],
    "trl": ["trl>=1.16"],  # the release that the tests run with; older ones were not tried
    "documents": ["pypdfium2>=5.0"],
    "ocr": ["rapidocr>=3.10,<4", "onnxruntime>=1.20"],  # Apache-2.0, the PP-OCR weights in its wheel too; MIT
    "tables": ["openpyxl>=3.1"],  # XLSX of `arr-coc extract`
    "video": ["av>=14.1"],
    "serve": ["fastapi>=0.115.4", "uvicorn>=0.30", "prometheus-client>=0.20", "jsonschema>=4.26"],
    "ray": ["ray[data,serve]>=2.60"],  # beside "serve"; the release that the tests run with; older ones were not tried
    "demo": ["gradio>=6.31"],  # the release that the tests run with; older ones were not tried
    "test": [
        "pytest>=8.3",
        "pytest-xdist>=3.6.1",
        "hypothesis>=6.100",
        "ruff>=0.17.6",
        "mypy>=2.4",
        "openai>=3.54",
        "rendercv-fonts>=0.5",
        "reportlab>=5.1",  # the release that the tests run with; older ones were not tried
        "build>=1.2.1",
        "parameterized>=0.9",  # transformers' own tests, which `make conformance` runs, import it
    ],
}

PACKAGE_DIR = {"arr_coc.modeling": "modeling"}

setup(
    name="arr-coc",
    version=VERSION,
    description="A vision-language model that runs back into the image for the patches a question needs",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*find_packages(include=["arr_coc", "arr_coc.*"]), *PACKAGE_DIR],
    package_dir=PACKAGE_DIR,
    package_data={
        "arr_coc.data": ["*.csv", "*.txt"],
        "arr_coc.extracting": ["*.html"],
        "arr_coc.pages": ["*.csv", "*.txt"],
        "arr_coc.pages.domains": ["*.css", "*.js", "*.txt"],
        "arr_coc.serving": ["monitoring/*"],
    },
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
    entry_points={
        "console_scripts": ["arr-coc = arr_coc.cli:main"],
        "lmms_eval.models": ["arr_coc = arr_coc.evaluation.lmms:manifest"],
    },
)
