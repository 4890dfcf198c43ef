"""From a folder of this repository to a repository on the Hub."""

from .building import build as build
