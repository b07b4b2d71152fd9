// Package settings loads the configurations of the library from YAML and from the environment, as
// services do: with gopkg.in/yaml.v3 and github.com/caarlos0/env. It holds tests only, run by "make
// settings".
//
//   - Every setting of every configuration is loaded from both sources, and arrives in its field.
//   - A mistake is refused, by the loader or by the constructor, with an error that names the
//     setting.
//
// Package style tests that every field has its names and is listed in docs/configuration.md. The
// tests are a module of their own, because users of the library do not need these packages.
package settings
