// Command compat runs the tests of the stores, of transport/amqp, of whole chains and the order
// example against the servers of other releases of Debian and Ubuntu, and writes the results into
// docs/compatibility.md.
//
//	make compat                              all releases
//	make compat RELEASES="trixie sid"        the named releases
//	make compat-bench                        measures the defaults there, for docs/performance/servers.md
//
// A release is a folder with its packages below bin/.releases, made by mmdebstrap through apt, in
// which the programs run (chroot). This needs root, and mmdebstrap with the keys of the archives
// (Debian, Ubuntu: apt-get install mmdebstrap debian-archive-keyring ubuntu-keyring). Otherwise a
// release is a Docker image with the same packages. The first run fetches some 250 MB for each
// release; a folder is kept until it is removed.
//
// The exit status is 0 only if everything passed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	chosen := flag.String("releases", "", "names of releases, separated by spaces; all if empty")
	trees := flag.String("trees", "bin/.releases", "the folder with a folder for each release; Go looks into no folder with such a name")
	document := flag.Bool("document", false, "write the table of "+documentPath)
	rounds := flag.Int("bench", 0, "measure the defaults in so many rounds instead, and write the table of "+benchPath)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, strings.Fields(*chosen), *trees, *document, *rounds)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, chosen []string, trees string, document bool, rounds int) error {
	releases, err := choose(chosen)
	if err != nil {
		return err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	if trees, err = filepath.Abs(trees); err != nil {
		return err
	}
	places, err := placesFor(ctx, root, trees)
	if err != nil {
		return err
	}
	if rounds > 0 {
		return benchAll(ctx, places, root, releases, rounds)
	}
	binaries, err := build(ctx, root)
	if err != nil {
		return err
	}
	rows, err := tryAll(ctx, places, releases, func(r release) (row, error) { return try(ctx, places, root, binaries, r) })
	if ctx.Err() != nil {
		return err
	}
	if document {
		err = errors.Join(err, write(filepath.Join(root, documentPath), rows))
	}
	var failed []string
	for _, row := range rows {
		if !row.passed() {
			failed = append(failed, row.release.name)
		}
	}
	if len(failed) > 0 {
		err = errors.Join(err, fmt.Errorf("not everything passed on %s; what the tests said is in %s",
			strings.Join(failed, ", "), filepath.Join(binaries, "logs")))
	}
	return err
}

// tryAll tries one release after the other. A release that cannot be fetched or tried does not stop
// the others.
func tryAll(ctx context.Context, places places, releases []release, try func(release) (row, error)) (rows []row, err error) {
	for _, r := range releases {
		if ctx.Err() != nil {
			return rows, errors.Join(err, ctx.Err())
		}
		if lacks := places.make(ctx, r); lacks != nil {
			lacks = fmt.Errorf("%s (%s) is not to be had and was not tested: %w", r.title, r.name, lacks)
			fmt.Println(lacks)
			err = errors.Join(err, lacks)
			continue
		}
		row, problem := try(r)
		if problem != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", r.name, problem))
			continue
		}
		fmt.Print(row.markdown())
		rows = append(rows, row)
	}
	return rows, err
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
