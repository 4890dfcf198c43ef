"""Extract fields from a folder or bucket of documents into Parquet with Ray Data, one file of the table per document.

python examples/extract_ray.py s3://bucket/receipts table --fields "date: date, total: money" --workers 2

Needs `pip install "arr-coc[ray]"`. The same command goes on after a kill: it reads what the table lacks.
"""

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import ray

import arr_coc
from arr_coc.extracting.rows import ENDINGS
from arr_coc.modeling.extraction import fields_to_extract

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("documents", help="folder, or address of a bucket")
parser.add_argument("table", type=Path, help="folder for Parquet files")
parser.add_argument("--fields", required=True, help="as of arr-coc extract")
parser.add_argument("--model", help="default: arr-coc-135m")
parser.add_argument("--workers", type=int, default=2, help="processes, each with the model in memory")
parser.add_argument("--cpus", type=float, default=1, help="cores of each")
arguments = parser.parse_args()

FIELDS = fields_to_extract(arguments.fields)
TYPES = {"number": pa.float64(), "money": pa.float64(), "yes/no": pa.bool_()}
COLUMNS = [column for each in FIELDS for column in (each.name, f"{each.name} probability")]
KINDS = [kind for each in FIELDS for kind in (TYPES.get(each.kind, pa.string()), pa.float64())]
SCHEMA = pa.schema([("document", pa.string()), *zip(COLUMNS, KINDS, strict=True), ("error", pa.string())])


class Extractor:
    """A worker with the model in memory."""

    def __init__(self) -> None:
        self.model = arr_coc.load_model(arguments.model)

    def __call__(self, batch: pa.Table) -> pa.Table:
        rows = []
        for document in batch.to_pylist():
            row = {"document": document["path"], "error": None}
            try:
                for name, found in self.model.extract(document["bytes"], FIELDS).items():
                    row |= {name: found.value, f"{name} probability": found.probability}
            except Exception as error:  # a bad file must not end the run
                row["error"] = f"{type(error).__name__}: {error}"
            rows.append(row)
        return pa.Table.from_pylist(rows, schema=SCHEMA)


if "://" in arguments.documents:
    system, folder = pyarrow.fs.FileSystem.from_uri(arguments.documents)
else:
    system, folder = pyarrow.fs.LocalFileSystem(), str(Path(arguments.documents).resolve())
listed = system.get_file_info(pyarrow.fs.FileSelector(folder, recursive=True))
paths = sorted(file.path for file in listed if file.path.lower().endswith(ENDINGS))
arguments.table.mkdir(parents=True, exist_ok=True)
known = set[str]()
if any(arguments.table.glob("*.parquet")):
    known = {*pyarrow.dataset.dataset(arguments.table, schema=SCHEMA).to_table(["document"])["document"].to_pylist()}
if left := [path for path in paths if path not in known]:
    read = ray.data.read_binary_files(left, filesystem=system, include_paths=True, override_num_blocks=len(left))
    table = read.map_batches(
        Extractor, batch_size=1, batch_format="pyarrow", concurrency=arguments.workers, num_cpus=arguments.cpus
    )
    table.write_parquet(str(arguments.table.resolve()))
print(f"{len(paths)} documents, {len(paths) - len(left)} of them read before; table in {arguments.table}")
