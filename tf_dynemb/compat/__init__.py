"""The names of other libraries, as thin adapters: tfra, torchrec, sok, one_embedding, keras_rs.

    from tf_dynemb.compat import tfra as de

Each is imported when it is asked for, and nothing else in tf_dynemb imports them. An option that such a
library has and tf_dynemb has not is refused if results would differ, and warned about once if only speed
or place would: `tf_dynemb.compat.options`.
"""
