"""A server without Python's TensorFlow: `python serving_process.py COMMAND < plan.json`; prints JSON.

What a program in C does: TF_LoadLibrary for the op library, TF_LoadSessionFromSavedModel,
TF_SessionRun, TF_DeleteSession; here through ctypes. The plan has the paths of TensorFlow's library and
of the op library, the models (path, names of feeds and of the fetch) and the batches to feed.

serve       loads all models side by side, runs them in turn, then closes one after the other.
concurrent  runs every batch on every model from many threads at once.
update      loads deltas into a model that serves, by its signature, and runs all batches after each.
reload      loads and closes the first model many times, and says how much memory is held after each.
drop        makes tensors and forgets them: leaks, for whoever looks for such.
"""

import contextlib
import ctypes
import json
import math
import sys
import threading

from process_memory import resident_mib

INT64, STRING = 9, 7  # of TF_DataType
POINTER = ctypes.c_void_p
RETURNS_POINTER = (
    "TF_AllocateTensor",
    "TF_GraphOperationByName",
    "TF_LoadLibrary",
    "TF_LoadSessionFromSavedModel",
    "TF_NewGraph",
    "TF_NewSessionOptions",
    "TF_NewStatus",
    "TF_TensorData",
)


class Output(ctypes.Structure):
    _fields_ = (("operation", POINTER), ("index", ctypes.c_int))


def load(plan):
    """TensorFlow's library with the op library in it."""
    global tf
    tf = ctypes.CDLL(plan["tensorflow"], mode=ctypes.RTLD_GLOBAL)
    for name in RETURNS_POINTER:
        getattr(tf, name).restype = POINTER
    tf.TF_Message.restype = ctypes.c_char_p
    tf.TF_Dim.restype = ctypes.c_int64
    with checked() as status:
        tf.TF_DeleteLibraryHandle(POINTER(tf.TF_LoadLibrary(plan["ops"].encode(), status)))


@contextlib.contextmanager
def checked():
    status = POINTER(tf.TF_NewStatus())
    yield status
    if tf.TF_GetCode(status):
        raise SystemExit(tf.TF_Message(status).decode())
    tf.TF_DeleteStatus(status)


def flat(values):
    while values and isinstance(values[0], list):
        values = [value for row in values for value in row]
    return values


def tensor_of(values):
    """Nested lists of int or str, or a str alone, as an int64 or a string tensor."""
    shape, inner = [], values
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0]
    values = flat(values) if shape else [values]
    strings = isinstance(inner, str)
    width = 24 if strings else 8  # of TF_TString
    dims = (ctypes.c_int64 * len(shape))(*shape)
    size = ctypes.c_size_t(width * len(values))
    tensor = POINTER(tf.TF_AllocateTensor(STRING if strings else INT64, dims, len(shape), size))
    data = tf.TF_TensorData(tensor)
    if not strings:
        ctypes.memmove(data, (ctypes.c_int64 * len(values))(*values), 8 * len(values))
    for number, value in enumerate(values if strings else []):
        place, text = POINTER(data + width * number), value.encode()
        tf.TF_StringInit(place)
        tf.TF_StringCopy(place, text, ctypes.c_size_t(len(text)))
    return tensor


class Model:
    def __init__(self, path, feeds, fetch):
        options, tags = POINTER(tf.TF_NewSessionOptions()), (ctypes.c_char_p * 1)(b"serve")
        self.graph = POINTER(tf.TF_NewGraph())
        with checked() as status:
            self.session = POINTER(
                tf.TF_LoadSessionFromSavedModel(
                    options, None, path.encode(), tags, 1, self.graph, None, status
                )
            )
        tf.TF_DeleteSessionOptions(options)
        self.feeds, self.fetch = feeds, fetch

    def __call__(self, batch, feeds=None, fetch=None):
        """A batch, by the names of the feeds, to the fetched floats as a flat list.

        feeds, fetch: of another signature than the one that serves.
        """
        feeds = feeds or self.feeds
        inputs = (Output * len(batch))(*[self.output(feeds[name]) for name in batch])
        tensors = (POINTER * len(batch))(*[tensor_of(values).value for values in batch.values()])
        fetches, results = (Output * 1)(self.output(fetch or self.fetch)), (POINTER * 1)()
        fed, fetched = (inputs, tensors, len(batch)), (fetches, results, 1)
        with checked() as status:
            tf.TF_SessionRun(self.session, None, *fed, *fetched, None, 0, None, status)
        result = POINTER(results[0])
        number = math.prod(tf.TF_Dim(result, axis) for axis in range(tf.TF_NumDims(result)))
        floats = list((ctypes.c_float * number).from_address(tf.TF_TensorData(result)))
        for tensor in (*tensors, result):
            tf.TF_DeleteTensor(tensor if isinstance(tensor, POINTER) else POINTER(tensor))
        return floats

    def output(self, name):
        operation, _, index = name.partition(":")
        return Output(tf.TF_GraphOperationByName(self.graph, operation.encode()), int(index))

    def close(self):
        for call in (tf.TF_CloseSession, tf.TF_DeleteSession):
            with checked() as status:
                call(self.session, status)
        tf.TF_DeleteGraph(self.graph)


def serve(models, batches, **_):
    """What each model says of each batch, in each of several rounds; every round closes one more."""
    models = [Model(**model) for model in models]
    rounds = []
    for closed in range(len(models)):
        rounds.append([[model(batch) for batch in batches] for model in models[closed:]])
        models[closed].close()
    return rounds


def concurrent(models, batches, threads, runs, **_):
    """What each model says of each batch, and how many of the concurrent runs said otherwise."""
    models = [Model(**model) for model in models]
    want = [[model(batch) for batch in batches] for model in models]
    wrong = []

    def work(thread):
        for run in range(runs):
            model, batch = (thread + run) % len(models), run % len(batches)
            if models[model](batches[batch]) != want[model][batch]:
                wrong.append((thread, run))

    workers = [threading.Thread(target=work, args=[thread]) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [want, wrong]


def update(models, batches, signature, deltas, **_):
    """What the model says of each batch, as it is and after each delta."""
    model = Model(**models[0])
    said = [[model(batch) for batch in batches]]
    for delta in deltas:
        model({"path": delta}, signature["feeds"], signature["fetch"])
        said.append([model(batch) for batch in batches])
    model.close()
    return said


def reload(models, batches, times, **_):
    """MiB that the process holds after each time."""
    held = []
    for _ in range(times):
        model = Model(**models[0])
        for batch in batches:
            model(batch)
        model.close()
        held.append(resident_mib())
    return held


def drop(batches, **_):
    return len([tensor_of(values) for batch in batches for values in batch.values()])


if __name__ == "__main__":
    plan = json.load(sys.stdin)
    load(plan)
    print(json.dumps(globals()[sys.argv[1]](**plan)))
    assert "tensorflow" not in sys.modules
