// Package service runs private PostgreSQL, MySQL or MariaDB, PgBouncer and RabbitMQ servers for
// tests.
//
// A server listens on a free loopback port, writes only into a temporary directory of its own, and
// never uses the configuration, the data or the ports of an installed instance. Any number of
// servers can run at once, in one process or in many.
//
// Servers run from installed binaries ([StartPostgres] and [StartRabbitMQ] search the directories
// of distributions and Homebrew), and otherwise in Docker. [Install] adds the missing packages on
// Debian and its relatives.
//
// # What can go wrong
//
//   - A port is taken between the choice and the bind: the server exits, and is started again on
//     other ports. A server counts as ready only when it answers under its random name, so a
//     foreign server on the port is never mistaken for it.
//   - The process that started a server dies without closing the server: on Linux the kernel stops
//     the server. Its temporary directory stays.
//   - PostgreSQL refuses to run as root: it runs as the user postgres, or nobody.
//   - Debian's /etc/rabbitmq/rabbitmq.conf overrides RABBITMQ_NODE_PORT, and an epmd outlives the
//     node that started it: a node gets its own configuration and its own epmd, in the foreground.
//
// # Test-only settings
//
// fsync, full-page writes and the disk-space alarm are off: a server survives the crash of its
// process, but not of the machine. Never use such a server for anything but tests.
package service
