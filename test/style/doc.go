// Package style tests the source of the whole module for rules that no linter checks as the project
// needs:
//
//   - no file has more than 500 lines, no function more than 80;
//   - every exported name is documented: types, functions, methods, constants and variables, the
//     methods of interfaces, and the fields of structs whose names end in Config. The comment on
//     another struct speaks for its fields.
//
// A comment on a group of constants, variables, methods or fields documents the group, up to the
// next blank line.
package style
