"""Pulls an artifact with oras, and prints its manifest as the last line: HOST:PORT/NAME:TAG FOLDER."""

import json
import sys

import oras.client

target, folder = sys.argv[1:]
client = oras.client.OrasClient(insecure=True)
manifest = client.get_manifest(target)
# The file of a layer without a title is named after its digest.
client.pull(target=target, outdir=folder)
print(json.dumps(manifest))
