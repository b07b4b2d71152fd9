// Package consumertest has what the tests of package consumer and of its effects share: real
// databases with a table of effects, messages, and child processes that are killed.
package consumertest
