"""Writes fixtures/spark and fixtures/datasets: the same rows as files of Spark and of Hugging Face's datasets, which
tests/judges/test_columnar.py trains on. Run it in an environment that has both, and a Java for Spark:

    pip install pyspark==4.3.0 datasets==5.2.0 && python make_spark_fixtures.py
"""
import pathlib
import random
import shutil
import tempfile

import datasets
from pyspark.sql import SparkSession

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
WORDS = ("a", "the", "cat", "dog", "sees", "Straße", "日本", "and", "runs", "\n")
SCHEMA = "text string, lang string, ids array<int>, meta struct<text: string, n: bigint>"


def rows():
    draw = random.Random(9)
    made = []
    for n in range(150):
        text = " ".join(draw.choices(WORDS, k=draw.randint(0, 20)))
        made.append({"text": text, "lang": ("de", "de-AT", "fr")[n % 3], "ids": [draw.randrange(50000) for _ in range(n % 5)],
                     "meta": {"text": text[::-1], "n": n}})
    return made


def write_spark(folder):
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    frame = spark.createDataFrame(rows(), SCHEMA)
    for codec in ("snappy", "zstd", "gzip"):
        frame.repartition(2).write.partitionBy("lang").option("compression", codec).parquet(str(folder / codec))
    spark.stop()


def write_datasets(folder):
    made = datasets.Dataset.from_list(rows())
    folder.mkdir()
    made.to_parquet(str(folder / "rows.parquet"), batch_size=60)
    made.save_to_disk(str(folder / "saved"), num_shards=2)


def main():
    with tempfile.TemporaryDirectory() as work:
        for name, write in (("spark", write_spark), ("datasets", write_datasets)):
            write(pathlib.Path(work) / name)
            shutil.rmtree(FIXTURES / name, ignore_errors=True)
            shutil.copytree(pathlib.Path(work) / name, FIXTURES / name)


main()
