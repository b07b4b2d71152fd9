// Package version names the version of this library in the running program.
package version

import (
	"runtime/debug"
	"sync"
)

const module = "github.com/boxpair/boxpair"

// Library returns the version of this library, such as "v1.4.0", or "(devel)" in its own tests and
// commands built from a checkout. Library returns "" for a program built without modules.
var Library = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return of(info)
})

// of returns the version of this library in a program.
func of(info *debug.BuildInfo) string {
	if info.Main.Path == module {
		return info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path != module {
			continue
		}
		if dep.Replace != nil && dep.Replace.Version != "" {
			return dep.Replace.Version
		}
		return dep.Version
	}
	return ""
}
