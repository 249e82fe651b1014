"""`python -m api_shim.cli` is `turnstream`."""

from api_shim.cli import main

main(prog_name="turnstream")
