// Package settings loads the configurations of the library from YAML and from the environment, as a
// service does with its own: with gopkg.in/yaml.v3 and github.com/caarlos0/env. It holds tests
// only, run by "make settings".
//
//   - Every setting of every configuration is loaded from both, and arrives in its field.
//   - What is written wrong is refused, by the loader or by the constructor, with an error by which
//     the setting is found.
//
// That every field has its names, and stands in docs/configuration.md, is a test of package style.
// The module is its own, because users need no such packages.
package settings
