package version

import (
	"runtime/debug"
	"testing"
)

func TestTheVersionIsTheLibrarysAndNotThePrograms(t *testing.T) {
	t.Parallel()
	dep := func(m debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Path: "example.com/shop", Version: "v9.0.0"}, Deps: []*debug.Module{
			{Path: "example.com/other", Version: "v8.0.0"}, &m,
		}}
	}
	for want, info := range map[string]*debug.BuildInfo{
		"v1.2.3":  dep(debug.Module{Path: module, Version: "v1.2.3"}),
		"v1.2.4":  dep(debug.Module{Path: module, Version: "v1.2.3", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.2.4"}}),
		"v1.2.5":  dep(debug.Module{Path: module, Version: "v1.2.5", Replace: &debug.Module{Path: "../boxpair"}}),
		"(devel)": {Main: debug.Module{Path: module, Version: "(devel)"}},
		"":        dep(debug.Module{Path: module + "/telemetry", Version: "v1.0.0"}),
	} {
		if got := of(info); got != want {
			t.Errorf("the version is %q, want %q", got, want)
		}
	}
}
