package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
)

// settings are the flags of a command, with the environment variables that replace them.
type settings struct {
	flags   *pflag.FlagSet
	getenv  func(string) string
	environ func() []string
	list    []setting
	secrets *secrets
	file    string // the configuration file
	home    string
	context string // the name of a context in the configuration file

	databases *databases // of the command; nil if it has none, or none of its own

	operands     string // as in the help, such as "ID…"; "" for none
	operandsFrom func(args []string) error
}

// setting is one flag with its environment variable.
type setting struct {
	flag, env, value, usage string
	many                    bool     // may be given several times; in the environment, separated by spaces
	values                  []string // all values, if they are few
}

func newSettings(p *process, hidden *secrets) *settings {
	s := &settings{flags: pflag.NewFlagSet("", pflag.ContinueOnError), getenv: p.getenv, environ: p.environ, secrets: hidden, home: p.home}
	s.flags.SortFlags = false
	if s.environ == nil {
		s.environ = func() []string { return nil }
	}
	s.operandsFrom = func(args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%d unexpected arguments after the flags", len(args))
		}
		return nil
	}
	s.text(&s.file, configSetting, "FILE", "a YAML file with settings under the names of the flags, for settings without flag and variable.\n"+
		"Defaults to boxpair/config.yaml in the user's configuration directory, if the file exists.")
	s.text(&s.context, contextSetting, "NAME", "a set of settings in the file, under contexts. Defaults to the file's context.")
	return s
}

// documented returns the settings of a command, for documents.
func documented(c *command) *settings {
	s := newSettings(&process{stderr: io.Discard, getenv: func(string) string { return "" }}, &secrets{})
	c.define(s)
	return s
}

// flagValue is the value of a flag.
type flagValue struct {
	kind string
	set  func(string) error
}

func (v flagValue) String() string        { return "" }
func (v flagValue) Set(text string) error { return v.set(text) }
func (v flagValue) Type() string          { return v.kind }

// add declares a setting. set parses the setting's text. value is the name of the value in the
// help, or "" for a switch.
func (s *settings) add(name, env, value, usage string, many bool, set func(string) error) {
	s.list = append(s.list, setting{name, env, value, usage, many, nil})
	kind := value
	if value == "" {
		kind = "bool"
	}
	f := s.flags.VarPF(flagValue{kind, set}, name, shorthands[name], strings.ReplaceAll(usage, "\n", " ")+" ("+env+")")
	if value == "" {
		f.NoOptDefVal = "true"
	}
}

// shorthands are the flags with a short form.
var shorthands = map[string]string{"output": "o", "reason": "m"}

// choice declares a setting that is one of several words.
func (s *settings) choice(to *string, name, value, usage string, words ...string) {
	s.add(name, envOf(name), value, usage, false, func(text string) error {
		if !slices.Contains(words, text) {
			return fmt.Errorf("want %s or %s", strings.Join(words[:len(words)-1], ", "), words[len(words)-1])
		}
		*to = text
		return nil
	})
	s.list[len(s.list)-1].values = words
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

// period parses a duration, which may begin with a number of days: 7d, or 1d12h.
func period(text string) (time.Duration, error) {
	number, rest, found := strings.Cut(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	const most = 36_500
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

// number declares a setting that is a whole number, at least 0.
func (s *settings) number(to *int64, name, usage string) {
	s.add(name, envOf(name), "N", usage, false, func(text string) (err error) {
		*to, err = strconv.ParseInt(text, 10, 64)
		if err != nil || *to < 0 {
			return errors.New("want a number")
		}
		return nil
	})
}

// urls declares a setting that names databases.
func (s *settings) urls(to *[]target, name, usage string) {
	s.add(name, envOf(name)+"_URL", "URL", usage, true, func(text string) error {
		s.secrets.hide(text)
		t, err := parseTarget(text)
		*to = append(*to, t)
		return err
	})
}

// complete reads the environment for settings without a flag, then the configuration file for the
// remaining settings.
func (s *settings) complete() error {
	given := make(map[string]bool)
	s.flags.VisitAll(func(f *pflag.Flag) { given[f.Name] = f.Changed })
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
	return errors.Join(append(errs, s.readFile(given))...)
}

// ofService matches the variables that Kubernetes sets for a service whose name begins with
// boxpair.
var ofService = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// strangers reports the variables with this program's prefix that belong to no command.
func (s *settings) strangers() (errs []error) {
	for _, variable := range s.environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, envPrefix) && !known().variables[name] && !ofService.MatchString(name) {
			errs = append(errs, fmt.Errorf("%s: is not a setting of any command", s.secrets.conceal(name)))
		}
	}
	return errs
}

// names are the names of the settings of all commands.
type names struct{ flags, variables map[string]bool }

// known returns the settings of all commands: one environment may serve several commands.
var known = sync.OnceValue(func() names {
	n := names{make(map[string]bool), make(map[string]bool)}
	for i := range commands {
		for _, setting := range documented(&commands[i]).list {
			n.flags[setting.flag], n.variables[setting.env] = true, true
		}
	}
	return n
})

// secrets are texts that are never to be printed.
type secrets struct{ list []string }

// hide keeps the password of a URL, or text that may be a password, out of all output.
func (s *secrets) hide(text string) {
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

func (s *secrets) secret(text string) {
	if text != "" {
		s.list = append(s.list, text, url.QueryEscape(text), url.PathEscape(text))
	}
}

// redact returns the text of err without passwords.
func (s *secrets) redact(err error) string { return s.conceal(err.Error()) }

// minSecret is the minimal length of a password that is replaced: a shorter text, such as the
// letter a, occurs in most texts. No known code prints a password; the replacement is a second
// safeguard.
const minSecret = 4

func (s *secrets) conceal(text string) string {
	for _, secret := range s.list {
		if len(secret) >= minSecret {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}
