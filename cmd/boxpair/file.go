package main

import (
	"errors"
	"fmt"
	"os"

	"gopkg.in/yaml.v3"
)

// configSetting is the setting that names the configuration file. The file cannot contain it.
const configSetting = "config"

// readFile reads the settings in the configuration file, except for those in given.
func (s *settings) readFile(given map[string]bool) error {
	text, err := os.ReadFile(s.file)
	if err != nil {
		return fmt.Errorf("-%s: %w", configSetting, err)
	}
	var document yaml.Node // a Node only: decoding errors of other types quote values
	if err := yaml.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("-%s %s: %w", configSetting, s.file, err)
	}
	if len(document.Content) == 0 {
		return nil // the file is empty
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("-%s %s: want lines such as \"lease: 10s\"", configSetting, s.file)
	}
	var errs []error
	seen := make(map[string]bool)
	for i := 0; i+1 < len(root.Content); i += 2 {
		name, value := root.Content[i], root.Content[i+1]
		s.hide(name.Value) // errors quote unknown names
		err := s.setFrom(name.Value, value, seen[name.Value], given[name.Value])
		seen[name.Value] = true
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, line %d: %s: %w", s.file, name.Line, name.Value, err))
		}
	}
	return errors.Join(errs...)
}

// setFrom sets one setting of the file, unless a flag or variable has set it.
func (s *settings) setFrom(name string, value *yaml.Node, again, given bool) error {
	var known *setting
	for i := range s.list {
		if s.list[i].flag == name && name != configSetting {
			known = &s.list[i]
		}
	}
	switch {
	case known == nil:
		return errors.New("is not a setting of this command")
	case again:
		return errors.New("is set twice")
	}
	values := []*yaml.Node{value}
	if value.Kind == yaml.SequenceNode && known.many {
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
