"""Makes the files next to it: D4RL's layout with every way in which an episode can end, with and without next observations.

Made with h5py 3.16.0, numpy 2.4.6: pip install h5py && python make.py
"""

from pathlib import Path

import h5py
import numpy as np

ROWS = 14
# Ends in a terminal state after rows 3, 8 (an episode of one row) and 10, at a limit after rows 7 and 10 (both at once). The
# last one stays open.
TERMINALS, TIMEOUTS = [3, 8, 10], [7, 10]


def flags(rows):
    return np.isin(np.arange(ROWS), rows)


random = np.random.default_rng(7)
columns = {
    "observations": random.standard_normal((ROWS, 2)).astype(np.float32),
    "actions": random.uniform(-1, 1, (ROWS, 1)).astype(np.float32),
    "rewards": random.standard_normal(ROWS).astype(np.float32),
    "terminals": flags(TERMINALS),
    "timeouts": flags(TIMEOUTS),
    "infos/qpos": random.standard_normal((ROWS, 3)),
    "infos/action_log_probs": random.standard_normal(ROWS).astype(np.float32),
}
following = {"next_observations": random.standard_normal((ROWS, 2)).astype(np.float32)}
for name, columns in {"ends": columns, "ends_with_next": columns | following}.items():
    with h5py.File(Path(__file__).parent / f"{name}.hdf5", "w") as file:
        for column, values in columns.items():
            file.create_dataset(column, data=values, chunks=(4, *values.shape[1:]), compression="gzip")
