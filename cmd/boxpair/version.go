package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

var version = command{
	name:    "version",
	summary: "print the version",
	details: "Prints the version of the release or of the module from which this program was built, and of Go.",
	group:   setUp,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		out := &form{}
		out.define(s)
		return func(_ context.Context, p *process) (int, error) {
			built, language := versions()
			return exitOK, out.result(p, versionText()+"\n", map[string]any{"version": built, "go": language})
		}
	},
}

// release is the version of a build without the repository, such as the build of the Dockerfile:
// -ldflags "-X main.release=v1.0.0". If release is "", the version is the version of the module.
var release string

func versionText() string {
	built, language := versions()
	if built == "" {
		return "boxpair, built without its version"
	}
	return fmt.Sprintf("boxpair %s, %s", built, language)
}

// versions returns the version of this program, or "" if it is not known, and of Go.
func versions() (built, language string) {
	if release != "" {
		return release, runtime.Version()
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", runtime.Version()
	}
	return info.Main.Version, info.GoVersion
}

// manual returns the command that writes the manual pages.
func manual() *cobra.Command {
	return &cobra.Command{
		Use: "man DIRECTORY", Short: "write a manual page for each command into a directory", GroupID: setUp,
		Args: cobra.ExactArgs(1), DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, args []string) error {
			return doc.GenManTree(c.Root(), &doc.GenManHeader{Section: "1", Source: "boxpair"}, args[0])
		},
	}
}
