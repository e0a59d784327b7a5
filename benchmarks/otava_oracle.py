"""Run by an interpreter that has apache-otava: series on standard input, their change points on standard output."""

import json
import sys

from otava.analysis import compute_change_points

request = json.load(sys.stdin)
found = [compute_change_points(list(series), **request["options"])[0] for series in request["series"]]
json.dump([[int(point.index) for point in points] for points in found], sys.stdout)
