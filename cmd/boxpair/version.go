package main

import (
	"context"
	"fmt"
	"runtime/debug"
)

var version = command{
	name:    "version",
	summary: "print the version",
	details: "Prints the version of the module from which this program was built, and of Go.",
	define: func(*settings) func(context.Context, *process) (int, error) {
		return func(_ context.Context, p *process) (int, error) {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				return exitFailed, fmt.Errorf("the program was built without its version")
			}
			_, err := fmt.Fprintf(p.stdout, "boxpair %s, %s\n", info.Main.Version, info.GoVersion)
			return exitOK, err
		}
	},
}
