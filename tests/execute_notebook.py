"""Execute a notebook cell by cell in a kernel of its own: python execute_notebook.py SOURCE.py RESULT.ipynb.

One thing is done differently from `jupyter execute`: the client keeps no `Output` widgets. With them it sends messages
on the channel that it waits on, now and then misses the reply of a cell with sliders, and stands still until the cell's
time is up (https://github.com/jupyter/nbclient/issues/312). What such a cell shows becomes its ordinary output.
"""

import sys
from pathlib import Path

import jupytext
import nbclient

SECONDS_PER_CELL = 300


def execute(source: Path, result: Path) -> None:
    """Execute ``source`` in its own folder and write it, with what its cells show, to ``result``."""
    notebook = jupytext.read(source)
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(source.parent)}},
    )
    client.widget_registry = {}
    client.execute()
    result.parent.mkdir(parents=True, exist_ok=True)
    jupytext.write(notebook, result)


if __name__ == "__main__":
    execute(Path(sys.argv[1]), Path(sys.argv[2]))
