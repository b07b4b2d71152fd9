package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// settings are the flags of a command, with the environment variables that replace them.
type settings struct {
	flags   *flag.FlagSet
	getenv  func(string) string
	environ func() []string
	list    []setting
	secrets []string // never to be printed
	file    string   // the configuration file
}

// setting is one flag with its environment variable.
type setting struct {
	flag, env, value, usage string
	many                    bool // may be given several times; in the environment, separated by spaces
}

func newSettings(p *process) *settings {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors would print values, and so passwords
	s := &settings{flags: flags, getenv: p.getenv, environ: p.environ}
	if s.environ == nil {
		s.environ = func() []string { return nil }
	}
	s.text(&s.file, configSetting, "FILE", "a YAML file with settings under the names of the flags, for settings without\n"+
		"flag and variable. Defaults to none.")
	return s
}

// add declares a setting. set parses the setting's text. value is the name of the value in the
// help, or "" for a switch.
func (s *settings) add(name, env, value, usage string, many bool, set func(string) error) {
	s.list = append(s.list, setting{name, env, value, usage, many})
	if value == "" {
		s.flags.BoolFunc(name, usage, set)
		return
	}
	s.flags.Func(name, usage, set)
}

// envPrefix begins the names of all environment variables.
const envPrefix = "BOXPAIR_"

func envOf(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// text declares a setting that is text.
func (s *settings) text(to *string, name, value, usage string) {
	s.add(name, envOf(name), value, usage, false, func(text string) error { *to = text; return nil })
}

// on declares a switch.
func (s *settings) on(to *bool, name, usage string) {
	s.add(name, envOf(name), "", usage, false, func(text string) error {
		switch text {
		case "true", "1", "yes":
			*to = true
		case "false", "0", "no":
			*to = false
		default:
			return errors.New("want true or false")
		}
		return nil
	})
}

// duration declares a setting that is a positive duration.
func (s *settings) duration(to *time.Duration, name, usage string) {
	s.add(name, envOf(name), "DURATION", usage, false, func(text string) (err error) {
		*to, err = period(text)
		if err != nil || *to <= 0 {
			return errors.New("want a duration such as 90s, 2h or 7d, above zero")
		}
		return nil
	})
}

// period parses a duration. It may begin with a number of days: 7d, or 1d12h.
func period(text string) (time.Duration, error) {
	number, rest, found := strings.Cut(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	const day, most = 24 * time.Hour, 36_500
	days, err := strconv.ParseUint(number, 10, 16)
	if err != nil || days > most {
		return 0, errors.New("not a number of days")
	}
	if rest == "" {
		return time.Duration(days) * day, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || more < 0 {
		return 0, errors.New("not a duration")
	}
	return time.Duration(days)*day + more, nil
}

// count declares a setting that is a number above zero.
func (s *settings) count(to *int, name, usage string) {
	s.add(name, envOf(name), "N", usage, false, func(text string) (err error) {
		*to, err = strconv.Atoi(text)
		if err != nil || *to < 1 {
			return errors.New("want a number above zero")
		}
		return nil
	})
}

// urls declares a setting that names databases.
func (s *settings) urls(to *[]target, name, usage string) {
	s.add(name, envOf(name)+"_URL", "URL", usage, true, func(text string) error {
		s.hide(text)
		t, err := parseTarget(text)
		*to = append(*to, t)
		return err
	})
}

// parse reads the flags, then the environment for settings without a flag, then the configuration
// file for settings without either. asked tells that the user asked for help.
func (s *settings) parse(args []string) (asked bool, err error) {
	if err := s.flags.Parse(args); err != nil {
		return errors.Is(err, flag.ErrHelp), s.clean(err)
	}
	if s.flags.NArg() > 0 {
		return false, fmt.Errorf("%d unexpected arguments after the flags", s.flags.NArg())
	}
	given := make(map[string]bool)
	s.flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	errs := s.strangers()
	for _, setting := range s.list {
		text := s.getenv(setting.env)
		if given[setting.flag] || text == "" {
			continue
		}
		given[setting.flag] = true
		values := []string{text}
		if setting.many {
			values = strings.Fields(text)
		}
		for _, value := range values {
			if err := s.flags.Lookup(setting.flag).Value.Set(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", setting.env, err))
			}
		}
	}
	if s.file != "" {
		errs = append(errs, s.readFile(given))
	}
	return false, errors.Join(errs...)
}

// ofService matches the variables that Kubernetes sets for a service whose name begins with
// boxpair.
var ofService = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// strangers reports the variables with this program's prefix that belong to no command.
func (s *settings) strangers() (errs []error) {
	for _, variable := range s.environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, envPrefix) && !known()[name] && !ofService.MatchString(name) {
			errs = append(errs, fmt.Errorf("%s: is not a setting of any command", s.conceal(name)))
		}
	}
	return errs
}

// known returns the variables of all commands: one environment may serve several commands.
var known = sync.OnceValue(func() map[string]bool {
	names := make(map[string]bool)
	for i := range commands {
		all := newSettings(&process{stderr: io.Discard, getenv: func(string) string { return "" }})
		commands[i].define(all)
		for _, setting := range all.list {
			names[setting.env] = true
		}
	}
	return names
})

// clean removes the value from an error of package flag.
func (s *settings) clean(err error) error {
	text := err.Error()
	if rest, ok := strings.CutPrefix(text, "invalid "); ok { // invalid value "…" for flag -x: why
		if i := strings.Index(rest, " for flag -"); i >= 0 {
			return errors.New(rest[i+len(" for flag "):])
		}
		if i := strings.LastIndex(rest, " for -"); i >= 0 {
			return errors.New(rest[i+len(" for "):])
		}
	}
	return err
}

// hide keeps the password of a URL, or text that may be a password, out of all output.
func (s *settings) hide(text string) {
	if i := strings.Index(text, "://"); i >= 0 {
		user, _, found := strings.Cut(text[i+3:], "@")
		if at := strings.LastIndex(text, "@"); at > i {
			user, found = text[i+3:at], true // a password with an @ in it
		}
		if _, password, ok := strings.Cut(user, ":"); ok && found {
			s.secret(password)
		}
	}
	if u, err := url.Parse(text); err == nil {
		if password, ok := u.User.Password(); ok {
			s.secret(password)
		}
		s.secret(u.Query().Get("password"))
		s.secret(u.Query().Get("sslpassword"))
	}
}

func (s *settings) secret(text string) {
	if text != "" {
		s.secrets = append(s.secrets, text, url.QueryEscape(text), url.PathEscape(text))
	}
}

// redact returns the text of err without passwords.
func (s *settings) redact(err error) string { return s.conceal(err.Error()) }

// minSecret is the minimal length of a password that is replaced: a shorter text, such as the
// letter a, occurs in most texts. No known code prints a password; the replacement is a second
// safeguard.
const minSecret = 4

func (s *settings) conceal(text string) string {
	for _, secret := range s.secrets {
		if len(secret) >= minSecret {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}

// describe prints the settings.
func (s *settings) describe(w io.Writer) {
	for _, setting := range s.list {
		value := setting.value
		if value != "" {
			value = " " + value
		}
		fmt.Fprintf(w, "  -%s%s  (%s)\n", setting.flag, value, setting.env)
		fmt.Fprintf(w, "        %s\n", strings.ReplaceAll(setting.usage, "\n", "\n        "))
	}
}
