package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// settings are the flags of a command, and the environment variables that stand in for them.
type settings struct {
	flags   *flag.FlagSet
	getenv  func(string) string
	list    []setting
	secrets []string // never to be printed
	file    string   // the configuration file
}

// setting is one of them.
type setting struct {
	flag, env, value, usage string
	many                    bool // may be given several times; in the environment, separated by spaces
}

func newSettings(p *process) *settings {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // it would print values, and so passwords
	s := &settings{flags: flags, getenv: p.getenv}
	s.text(&s.file, configSetting, "FILE", "a YAML file with settings, named as the flags are, for those that neither\n"+
		"a flag nor the environment gives. Defaults to none.")
	return s
}

// add declares a setting, whose text set takes. value is what help calls its value, "" for a switch.
func (s *settings) add(name, env, value, usage string, many bool, set func(string) error) {
	s.list = append(s.list, setting{name, env, value, usage, many})
	if value == "" {
		s.flags.BoolFunc(name, usage, set)
		return
	}
	s.flags.Func(name, usage, set)
}

func envOf(name string) string {
	return "BOXPAIR_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
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
		*to, err = time.ParseDuration(text)
		if err != nil || *to <= 0 {
			return errors.New("want a duration such as 90s or 2h, above zero")
		}
		return nil
	})
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

// parse reads the flags, the environment for those that are not given, and the configuration file for what is in
// neither. asked tells that help is wanted.
func (s *settings) parse(args []string) (asked bool, err error) {
	if err := s.flags.Parse(args); err != nil {
		return errors.Is(err, flag.ErrHelp), s.clean(err)
	}
	if s.flags.NArg() > 0 {
		return false, fmt.Errorf("%d arguments are left over after the flags", s.flags.NArg())
	}
	given := make(map[string]bool)
	s.flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var errs []error
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

// clean takes the value out of an error of the flag package.
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

// hide keeps the password in a URL, or what may be one, out of everything that is printed.
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

// minSecret is how long a password has to be to be looked for in a text: the letter a is in most.
// Nothing is known to print one; this is the second lock on the door.
const minSecret = 4

func (s *settings) conceal(text string) string {
	for _, secret := range s.secrets {
		if len(secret) >= minSecret {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}

// describe prints what settings there are.
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
