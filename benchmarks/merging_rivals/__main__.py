"""`python -m benchmarks.merging_rivals`."""

from benchmarks.merging_rivals import main

raise SystemExit(main())
