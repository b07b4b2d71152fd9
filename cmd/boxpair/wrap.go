package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
)

// leastText is the least width of wrapped text, beside an indent of any width.
const leastText = 24

// wrap prints words after a head, in lines that fit into the terminal; later lines begin with indent.
// A word is never broken: it may be an ID. With --wide there is one line.
func (d *display) wrap(p *process, out io.Writer, head, indent, words string) {
	if d.wide {
		fmt.Fprintln(out, head+words)
		return
	}
	width := max(d.width(p), len(indent)+leastText)
	line, used, fresh := head, text.StringWidthWithoutEscSequences(head), true
	for word := range strings.SplitSeq(words, " ") {
		n := text.StringWidthWithoutEscSequences(word)
		if !fresh && used+1+n > width {
			fmt.Fprintln(out, strings.TrimRight(line, " "))
			line, used, fresh = indent, len(indent), true
		}
		switch {
		case !fresh:
			line, used = line+" "+word, used+1+n
		case word != "": // a line begins with no space
			line, used, fresh = line+word, used+n, false
		}
	}
	fmt.Fprintln(out, strings.TrimRight(line, " "))
}

// commandBegins matches the beginning of a command or statement to copy.
var commandBegins = regexp.MustCompile(`(^|[ ;])((boxpair|rabbitmqctl|rabbitmq-plugins) [a-z]|(SELECT|ALTER|GRANT|REVOKE|VACUUM|REINDEX|COMMIT|ROLLBACK) )`)

// remedy prints a remedy. In a remedy that is too long for a line, the command has a line of its own,
// which is not wrapped: operators copy the command.
func (d *display) remedy(p *process, out io.Writer, indent, words string) {
	at := commandBegins.FindStringSubmatchIndex(words)
	if at == nil || d.wide || len(indent)+text.StringWidthWithoutEscSequences(words) <= d.width(p) {
		d.wrap(p, out, indent, indent, words)
		return
	}
	if prose := strings.TrimSpace(words[:at[4]]); prose != "" {
		d.wrap(p, out, indent, indent, prose)
	}
	fmt.Fprintln(out, indent+words[at[4]:])
}

// commented prints a command with its comment. The comment stands behind the command, or above if both
// are too long for a line. The command is not wrapped: operators copy the command.
func (d *display) commented(p *process, out io.Writer, indent, command string) {
	const mark = "# "
	line, comment := command, ""
	if at := strings.LastIndex(command, mark); at == 0 || at > 2 && strings.HasSuffix(command[:at], "   ") {
		line, comment = strings.TrimRight(command[:at], " "), command[at+len(mark):]
	}
	if comment == "" || d.wide || len(indent)+text.StringWidthWithoutEscSequences(command) <= d.width(p) {
		fmt.Fprintln(out, indent+command)
		return
	}
	d.wrap(p, out, indent+mark, indent+mark, comment)
	if line != "" {
		fmt.Fprintln(out, indent+line)
	}
}
