package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"
)

// completionTime bounds how long a shell waits for names of a database.
const completionTime = 2 * time.Second

// completion returns how a shell completes the value of a setting: from its words, from the contexts of
// the configuration file, or from the names that the databases know. It returns nil if there is none.
func (s *settings) completion(one *setting) cobra.CompletionFunc {
	const files = cobra.ShellCompDirectiveNoFileComp
	from := func(list func(ctx context.Context) []string) cobra.CompletionFunc {
		return func(c *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			ctx := c.Context()
			if ctx == nil {
				ctx = context.Background()
			}
			return slices.Compact(slices.Sorted(slices.Values(list(ctx)))), files
		}
	}
	named := func(pick func(v *vocabulary) []string) cobra.CompletionFunc {
		return from(func(ctx context.Context) []string { return pick(s.vocabulary(ctx)) })
	}
	switch {
	case len(one.values) > 0:
		return cobra.FixedCompletions(one.values, files)
	case one.flag == contextSetting:
		return from(func(context.Context) []string { return s.contexts() })
	case s.databases == nil:
	case one.flag == "topic":
		return named(func(v *vocabulary) []string { return v.topics })
	case one.flag == "downstream":
		return named(func(v *vocabulary) []string { return v.downstreams })
	case one.flag == "consumer" && one.value == "NAME":
		return named(func(v *vocabulary) []string { return v.consumers })
	}
	return nil
}

// vocabulary reads what the databases of the command line know. A shell has no place for errors.
func (s *settings) vocabulary(ctx context.Context) *vocabulary {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	v := &vocabulary{}
	if s.complete() == nil {
		_ = s.databases.each(ctx, true, func(o *operators) error { return v.learn(ctx, o) })
	}
	return v
}

// contexts are the names of the contexts in the configuration file.
func (s *settings) contexts() (names []string) {
	if s.file == "" {
		s.file = s.getenv(envOf(configSetting))
	}
	root, err := s.openFile()
	if err != nil || root == nil {
		return nil
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == contextsSetting && root.Content[i+1].Kind == yaml.MappingNode {
			for k := 0; k+1 < len(root.Content[i+1].Content); k += 2 {
				names = append(names, root.Content[i+1].Content[k].Value)
			}
		}
	}
	return names
}
