"""Example 3 answers as its own OpenAPI document says: requests that schemathesis makes of the document."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shop_driver import FASTAPI, Shop, serving
from tests.acceptance.shop_servers import servers_of
