"""GoogleTest from the sources that Debian's and Ubuntu's package `googletest` installs."""

_DEFAULT = "/usr/src/googletest"

_BUILD = """\
cc_library(
    name = "gtest_main",
    testonly = True,
    srcs = ["googletest/src/gtest-all.cc", "googletest/src/gtest_main.cc", "googlemock/src/gmock-all.cc"],
    hdrs = glob(["googletest/**/*.h", "googlemock/**/*.h"]),
    # gtest-all.cc and gmock-all.cc #include these.
    textual_hdrs = glob(["googletest/src/*.cc", "googlemock/src/*.cc"]),
    copts = ["-g1"],
    includes = ["googletest", "googletest/include", "googlemock", "googlemock/include"],
    linkopts = ["-pthread"],
    linkstatic = True,
    visibility = ["//visibility:public"],
)
"""

def _local_googletest_impl(ctx):
    root = ctx.os.environ.get("TF_DYNEMB_GOOGLETEST") or _DEFAULT
    if not ctx.path(root).get_child("googletest").exists:
        fail("GoogleTest's sources are not in {}: apt-get install googletest, ".format(root) +
             "or name their folder with --repo_env=TF_DYNEMB_GOOGLETEST=PATH")
    for part in ["googletest", "googlemock"]:
        ctx.symlink(root + "/" + part, part)
    ctx.file("BUILD", _BUILD)

local_googletest = repository_rule(
    implementation = _local_googletest_impl,
    doc = "@googletest//:gtest_main, GoogleTest and GoogleMock with a main().",
    environ = ["TF_DYNEMB_GOOGLETEST"],
    local = True,
)
