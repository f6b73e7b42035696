"""``python -m costmodel``: see costmodel.cli."""

from costmodel.cli import main

raise SystemExit(main())
