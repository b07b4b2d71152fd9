package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// The exit statuses.
const (
	exitOK     = 0
	exitFound  = 1
	exitFailed = 2
)

// process holds the parts of the process that a command uses.
type process struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	environ        func() []string // like os.Environ; nil: unknown variables are not looked for
}

// command is a subcommand. define declares the command's settings, which are then read from flags,
// environment and file, and returns the function to run. The function returns the exit status, or
// an error, which is printed.
type command struct {
	name, summary, details string
	define                 func(s *settings) func(ctx context.Context, p *process) (int, error)
}

// commands are all subcommands, in the order of the help.
var commands = slices.Concat([]command{relayCommand, status}, pauseCommands, letterCommands, effectCommands, []command{verify, migrate, version})

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := &process{stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, environ: os.Environ}
	status := run(ctx, p, os.Args[1:])
	stop()
	os.Exit(status)
}

// run runs a command line and returns the exit status.
func run(ctx context.Context, p *process, args []string) int {
	if len(args) == 0 {
		overview(p.stderr)
		return exitFailed
	}
	s := newSettings(p)
	for _, arg := range args { // errors quote unknown arguments
		s.hide(arg)
	}
	name, args := named(args)
	if name == "help" || name == "-h" || name == "-help" || name == "--help" {
		return help(p, s, args)
	}
	if family(name, "-h", "-help", "--help", "help") {
		overview(p.stdout)
		return exitOK
	}
	c := find(name)
	if c == nil {
		fmt.Fprintf(p.stderr, "boxpair: unknown command %q\n\n", s.conceal(name))
		overview(p.stderr)
		return exitFailed
	}
	work := c.define(s)
	switch asked, err := s.parse(args); {
	case asked:
		describe(p.stdout, c)
		return exitOK
	case err != nil:
		fmt.Fprintf(p.stderr, "boxpair %s: %v\nRun: boxpair help %s\n", c.name, s.redact(err), c.name)
		return exitFailed
	}
	status, err := work(ctx, p)
	if err != nil {
		if ctx.Err() != nil {
			fmt.Fprintf(p.stderr, "boxpair %s: interrupted\n", c.name)
			return exitFailed
		}
		fmt.Fprintf(p.stderr, "boxpair %s: %v\n", c.name, s.redact(err))
		return exitFailed
	}
	return status
}

// named splits the name of a command, which may have two words, from the arguments after it.
func named(args []string) (name string, rest []string) {
	if (args[0] == deadLetters || args[0] == effectsName) && len(args) > 1 {
		return args[0] + " " + args[1], args[2:]
	}
	return args[0], args[1:]
}

// family tells whether name is the first word of a two-word command, alone or followed by one of
// words.
func family(name string, words ...string) bool {
	first, second, _ := strings.Cut(name, " ")
	return (first == deadLetters || first == effectsName) && (second == "" || slices.Contains(words, second))
}

func find(name string) *command {
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return &commands[i]
}

// help describes one command or all commands.
func help(p *process, s *settings, args []string) int {
	if len(args) == 0 {
		overview(p.stdout)
		return exitOK
	}
	name, _ := named(args)
	if family(name) {
		overview(p.stdout)
		return exitOK
	}
	c := find(name)
	if c == nil {
		fmt.Fprintf(p.stderr, "boxpair help: unknown command %q\n", s.conceal(name))
		return exitFailed
	}
	describe(p.stdout, c)
	return exitOK
}

func overview(w io.Writer) {
	fmt.Fprint(w, "boxpair runs and checks an outbox and inbox pair.\n\nUsage: boxpair COMMAND [flags]\n\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-20s %s\n", c.name, c.summary)
	}
	fmt.Fprintf(w, "  %-20s %s\n", "help", "describe a command and its settings")
	fmt.Fprint(w, "\nExit status: 0 all is well, 1 verify found discrepancies, status a bad state, migrate -check missing\nmigrations, a change of dead letters changed nothing, or resume found no pause; 2 the command failed.\n")
}

func describe(w io.Writer, c *command) {
	s := newSettings(&process{stderr: io.Discard, getenv: func(string) string { return "" }})
	c.define(s)
	fmt.Fprintf(w, "Usage: boxpair %s [flags]\n\n%s\n\nFlags; in parentheses the environment variable for use in place of the flag:\n\n", c.name, c.details)
	s.describe(w)
}
