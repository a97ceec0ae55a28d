"""A strict fake of Google Cloud Storage's JSON API on 127.0.0.1: preconditions everywhere, counters, faults.

What it leaves out: XML API, soft delete, object versions, holds, ACLs, encryption keys, HNS, transcoding of gzip, the
limit of one write a second to a name.
"""

from tests.helpers.gcs.client import FakeGcs, Gcs, ProcessGcs
from tests.helpers.gcs.faults import Fault

__all__ = ["FakeGcs", "Fault", "Gcs", "ProcessGcs"]
