package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gopkg.in/yaml.v3"
)

// configSetting is the setting that names the configuration file. The file cannot contain it.
// contextSetting selects one of the file's contexts, a mapping of names to settings.
const (
	configSetting   = "config"
	contextSetting  = "context"
	contextsSetting = "contexts"
)

// readFile reads the settings in the configuration file that are not in given: first the settings of
// the context, then the settings of the top level.
func (s *settings) readFile(given map[string]bool) error {
	root, err := s.openFile()
	if err != nil || root == nil {
		if err == nil && s.context != "" {
			err = fmt.Errorf("--%s: there is no configuration file", contextSetting)
		}
		return err
	}
	contexts := make(map[string]*yaml.Node)
	var errs []error
	rest := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i+1 < len(root.Content); i += 2 {
		name, value := root.Content[i], root.Content[i+1]
		switch name.Value {
		case contextsSetting:
			for k := 0; k+1 < len(value.Content); k += 2 {
				contexts[value.Content[k].Value] = value.Content[k+1]
			}
		case contextSetting:
			if !given[contextSetting] {
				s.context = value.Value
			}
		default:
			rest.Content = append(rest.Content, name, value)
		}
	}
	if s.context != "" {
		chosen := contexts[s.context]
		if chosen == nil || chosen.Kind != yaml.MappingNode {
			return fmt.Errorf("--%s: %s has no context %q", contextSetting, s.file, s.context)
		}
		errs = append(errs, s.readSettings(chosen, given))
		for i := 0; i+1 < len(chosen.Content); i += 2 {
			given[chosen.Content[i].Value] = true
		}
	}
	return errors.Join(append(errs, s.readSettings(rest, given))...)
}

// openFile reads the configuration file. It returns nil if the file is missing or empty.
func (s *settings) openFile() (*yaml.Node, error) {
	standard := s.file == ""
	if standard {
		if s.home == "" {
			return nil, nil
		}
		s.file = filepath.Join(s.home, "boxpair", "config.yaml")
	}
	text, err := os.ReadFile(s.file)
	if err != nil {
		if standard && errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("--%s: %w", configSetting, err)
	}
	var document yaml.Node // a Node only: decoding errors of other types quote values
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("--%s %s: %w", configSetting, s.file, err)
	}
	if len(document.Content) == 0 {
		return nil, nil // the file is empty
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("--%s %s: want lines such as \"lease: 10s\"", configSetting, s.file)
	}
	return root, nil
}

// readSettings sets the settings of a mapping that are not in given.
func (s *settings) readSettings(root *yaml.Node, given map[string]bool) error {
	var errs []error
	seen := make(map[string]bool)
	for i := 0; i+1 < len(root.Content); i += 2 {
		name, value := root.Content[i], root.Content[i+1]
		s.secrets.hide(name.Value) // errors quote unknown names
		err := s.setFrom(name.Value, value, seen[name.Value], given[name.Value])
		seen[name.Value] = true
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, line %d: %s: %w", s.file, name.Line, name.Value, err))
		}
	}
	return errors.Join(errs...)
}

// setFrom sets one setting of the file, unless a flag or variable has set it. A setting that only other
// commands have is skipped: one file may serve several commands.
func (s *settings) setFrom(name string, value *yaml.Node, again, given bool) error {
	var mine *setting
	for i := range s.list {
		if s.list[i].flag == name {
			mine = &s.list[i]
		}
	}
	switch {
	case name == configSetting || name == contextSetting || !known().flags[name]:
		return errors.New("is not a setting of any command")
	case again:
		return errors.New("is set twice")
	case mine == nil:
		return nil
	}
	values := []*yaml.Node{value}
	if value.Kind == yaml.SequenceNode && mine.many {
		values = value.Content
	}
	var errs []error
	for _, v := range values {
		if v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
			errs = append(errs, errors.New("a value is missing"))
			continue
		}
		if !given {
			errs = append(errs, s.flags.Lookup(name).Value.Set(v.Value))
		}
	}
	return errors.Join(errs...)
}
