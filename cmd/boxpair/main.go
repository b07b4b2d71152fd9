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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// The exit statuses.
const (
	exitOK     = 0
	exitFound  = 1
	exitFailed = 2
)

// process holds the parts of the process that a command uses.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	environ        func() []string // like os.Environ; nil: unknown variables are not looked for
	home           string          // the directory of the default configuration file; "" for none
	width          int             // of the terminal that stdout is, or 0
	measure        func() int      // reads width again, for output that outlives a change of it; may be nil
	asks           bool            // stdin and stderr are terminals, so an operator can confirm
}

// command is a subcommand. define declares the command's settings, which are then read from flags,
// environment and file, and returns the function to run. The function returns the exit status, or
// an error, which is printed.
type command struct {
	name, summary, details string
	group                  string // one of groups
	define                 func(s *settings) func(ctx context.Context, p *process) (int, error)
}

// The groups of commands in the help.
const (
	looking  = "Look:"
	changing = "Change:"
	running  = "Run:"
	setUp    = "Set up:"
)

// commands are all subcommands with settings, in the order of the help.
var commands = slices.Concat(
	[]command{status}, lookCommands, []command{family, events, examine},
	pauseCommands, letterCommands, []command{edit}, deferredCommands, []command{replay}, effectCommands,
	[]command{relayCommand, drain, janitor, dashboard},
	[]command{verify, identify},
	migrateCommands, []command{grants, declare, version},
)

// families are the commands that only have subcommands.
var families = map[string]command{
	deadLetters:  {summary: "list, redrive and discard dead events and messages", group: changing},
	deferredName: {summary: "list, move and cancel deferred events", group: changing},
	effectsName:  {summary: "list and settle effects outside the database", group: changing},
	migrateName:  {summary: "create, update, check or print the tables, and print grants", group: setUp},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := &process{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, environ: os.Environ}
	p.home, _ = os.UserConfigDir() // "" without a home directory
	p.width, p.measure = terminalWidth(), terminalWidth
	p.asks = term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd()))
	status := run(ctx, p, os.Args[1:])
	stop()
	os.Exit(status)
}

// terminalWidth is the width of the terminal that the standard output is, or 0.
func terminalWidth() int {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if (err != nil || width == 0) && term.IsTerminal(int(os.Stdout.Fd())) {
		return narrowWidth // a terminal that does not tell
	}
	return width
}

// run runs a command line and returns the exit status.
func run(ctx context.Context, p *process, args []string) int {
	t := newTree(p) //nolint:contextcheck // cobra hands the context to the command
	if err := singleDash(args); err != nil {
		fmt.Fprintf(p.stderr, "boxpair: %v\n", err)
		return exitFailed
	}
	for _, arg := range args { // errors quote unknown arguments
		t.secrets.hide(arg)
	}
	t.root.SetArgs(args)
	c, err := t.root.ExecuteContextC(ctx)
	if err == nil {
		return t.status
	}
	name := strings.TrimSpace(c.CommandPath())
	switch {
	case t.working && ctx.Err() != nil:
		fmt.Fprintf(p.stderr, "%s: interrupted\n", name)
	case t.working:
		fmt.Fprintf(p.stderr, "%s: %s\n", name, t.secrets.redact(err))
	default:
		fmt.Fprintf(p.stderr, "%s: %s\nRun: %s --help\n", name, t.secrets.redact(err), name)
	}
	return exitFailed
}

// tree is the command line as a tree of commands.
type tree struct {
	root    *cobra.Command
	secrets *secrets
	status  int
	working bool // the settings were right, and a command has begun to work
}

func newTree(p *process) *tree {
	t := &tree{secrets: &secrets{}}
	t.root = &cobra.Command{
		Use:   "boxpair",
		Short: "boxpair shows, explains and heals outboxes and inboxes, and runs relays",
		Long: reflow(`boxpair shows, explains and heals outboxes and inboxes, and runs relays.

Exit status: 0 all is well; 1 the command found what it looks for (a bad state, a discrepancy,
a missing migration) or changed nothing; 2 the command failed.`),
		SilenceErrors: true, SilenceUsage: true,
		Args: subcommand, RunE: helpOnly,
		Version: versionText(),
	}
	t.root.SetVersionTemplate("{{.Version}}\n")
	t.root.SetOut(p.stdout)
	t.root.SetErr(p.stderr)
	t.root.SetIn(p.stdin)
	t.root.SetUsageTemplate(strings.ReplaceAll(t.root.UsageTemplate(), "FlagUsages", "FlagUsagesWrapped "+fmt.Sprint(helpWidth)))
	t.root.SetFlagErrorFunc(clean)
	for _, group := range []string{looking, changing, running, setUp} {
		t.root.AddGroup(&cobra.Group{ID: group, Title: group})
	}
	for i := range commands {
		t.add(p, &commands[i])
	}
	t.root.AddCommand(manual())
	t.root.SetHelpCommandGroupID(setUp)
	t.root.SetCompletionCommandGroupID(setUp)
	t.root.InitDefaultCompletionCmd()
	return t
}

// helpWidth is the width of lines in the help.
const helpWidth = 80

// reflow wraps paragraphs to the width of the help. Indented lines are commands to copy.
func reflow(details string) string {
	var out strings.Builder
	for block := range strings.SplitSeq(details, "\n\n") {
		if out.Len() > 0 {
			out.WriteString("\n")
		}
		if strings.HasPrefix(block, " ") {
			out.WriteString(block + "\n")
			continue
		}
		(&display{}).wrap(&process{width: helpWidth}, &out, "", "", strings.ReplaceAll(block, "\n", " "))
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// add adds a command to the tree.
func (t *tree) add(p *process, c *command) {
	s := newSettings(p, t.secrets)
	work := c.define(s)
	parent, use := t.root, c.name
	if first, verb, two := strings.Cut(c.name, " "); two {
		parent, use = t.family(first), verb
	}
	if s.operands != "" {
		use += " " + s.operands
	}
	one := &cobra.Command{
		Use: use, Short: c.summary, Long: reflow(c.details),
		Args: func(_ *cobra.Command, args []string) error { return s.operandsFrom(args) },
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := s.complete(); err != nil {
				return err
			}
			t.working = true
			if s.databases != nil {
				defer s.databases.opened.close()
			}
			t.status, err = work(cmd.Context(), p)
			return err
		},
		DisableFlagsInUseLine: true,
	}
	if parent == t.root {
		one.GroupID = c.group
	}
	one.Flags().AddFlagSet(s.flags)
	one.Flags().SortFlags = false
	for i := range s.list {
		if complete := s.completion(&s.list[i]); complete != nil {
			_ = one.RegisterFlagCompletionFunc(s.list[i].flag, complete) // the flag exists
		}
	}
	parent.AddCommand(one)
}

// family returns the parent of two-word commands.
func (t *tree) family(name string) *cobra.Command {
	for _, c := range t.root.Commands() {
		if c.Name() == name {
			return c
		}
	}
	f := families[name]
	parent := &cobra.Command{Use: name, Short: f.summary, GroupID: f.group, Args: subcommand, RunE: helpOnly}
	t.root.AddCommand(parent)
	return parent
}

// subcommand refuses the name of a command that does not exist.
func subcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	if c.SuggestionsMinimumDistance == 0 {
		c.SuggestionsMinimumDistance = 2
	}
	if like := c.SuggestionsFor(args[0]); len(like) > 0 {
		text += ", did you mean " + strings.Join(like, " or ") + "?"
	}
	return fmt.Errorf("%s", text)
}

func helpOnly(c *cobra.Command, _ []string) error { return c.Help() }

// singleDash refuses -outbox: flags of more than one letter begin with two dashes. Otherwise -outbox
// would be -o with the value utbox.
func singleDash(args []string) error {
	for _, arg := range args {
		if arg == "--" {
			return nil
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		if strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && known().flags[name] {
			return fmt.Errorf("-%s: write --%s", name, name)
		}
	}
	return nil
}

// clean removes the value from an error of package pflag.
func clean(c *cobra.Command, err error) error {
	switch e := err.(type) { //nolint:errorlint // as the library returns it
	case *pflag.InvalidValueError:
		return fmt.Errorf("--%s: %w", e.GetFlag().Name, e.Unwrap())
	case *pflag.NotExistError:
		if e.GetSpecifiedShortnames() != "" {
			return fmt.Errorf("unknown flag -%s", e.GetSpecifiedName())
		}
		return fmt.Errorf("unknown flag --%s%s", e.GetSpecifiedName(), alike(c, e.GetSpecifiedName()))
	}
	return err
}

// alike suggests the flags of a command that begin like name, or contain it.
func alike(c *cobra.Command, name string) string {
	var list []string
	c.Flags().VisitAll(func(flag *pflag.Flag) {
		if len(name) > 2 && (strings.HasPrefix(flag.Name, name[:3]) || strings.Contains(flag.Name, name)) {
			list = append(list, "--"+flag.Name)
		}
	})
	if len(list) == 0 {
		return ""
	}
	slices.Sort(list)
	return ", did you mean " + strings.Join(list[:min(3, len(list))], " or ") + "?"
}
