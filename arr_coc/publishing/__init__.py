"""Publishing: from a model folder to a repository on the Hub."""

from .building import build as build
from .pushing import check as check
from .pushing import check_name as check_name
from .pushing import push as push
