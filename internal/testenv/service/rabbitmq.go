package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ is a private RabbitMQ node. Its methods must not be called concurrently.
type RabbitMQ struct {
	server
	url   string
	ctl   string
	epmd  *process
	ports rabbitPorts
	tls   *TLS // nil without

	management bool
	env        []string
}

// rabbitPorts are the ports of one node. The command line tools listen too: without a range of
// their own, eleven tools exhaust a machine.
type rabbitPorts struct{ amqp, dist, epmd, ctl, management int }

const ctlPorts = 100

// StartRabbitMQ starts a RabbitMQ node and returns when it accepts connections, after about six
// seconds. The user guest may log in from loopback. The caller must Close the node.
func StartRabbitMQ(ctx context.Context) (*RabbitMQ, error) {
	return StartRabbitMQWith(ctx, RabbitMQConfig{})
}

// RabbitMQConfig configures a node.
type RabbitMQConfig struct {
	// TLS, if not nil, makes the node refuse connections without TLS. It needs installed binaries.
	TLS *TLS
	// Management enables the plugin rabbitmq_management.
	Management bool
	// Env is added to the environment of the node, as "NAME=value"; a node in Docker does not get
	// it. Defaults to none.
	Env []string
}

// StartRabbitMQWith is [StartRabbitMQ] with a configuration.
func StartRabbitMQWith(ctx context.Context, c RabbitMQConfig) (*RabbitMQ, error) {
	bin := RabbitMQBin()
	if bin == "" {
		if c.TLS != nil {
			return nil, fmt.Errorf("RabbitMQ: %w", errNoTLSInDocker)
		}
		if !DockerWorks(ctx) {
			return nil, fmt.Errorf("RabbitMQ: %w", ErrMissing)
		}
		if err := pull(ctx, rabbitImage); err != nil {
			return nil, err
		}
	}
	return retry("RabbitMQ", func() (*RabbitMQ, error) { return newRabbitMQ(ctx, bin, c) })
}

// URL returns the address of the virtual host / for the user guest: amqp://, or amqps:// with TLS.
func (r *RabbitMQ) URL() string { return r.url }

// ManagementURL returns the address of the management API for the user guest, if the API is
// enabled.
func (r *RabbitMQ) ManagementURL() string {
	return fmt.Sprintf("http://guest:guest@%s:%d", loopback, r.ports.management)
}

// plugins returns the file of enabled plugins.
func (r *RabbitMQ) plugins() string {
	if r.management {
		return "[rabbitmq_management].\n"
	}
	return "[].\n"
}

// advanced returns the file of settings that have no name elsewhere: with the management API, quorum
// queues tell their policies and lengths every second instead of every five.
func (r *RabbitMQ) advanced() string {
	if r.management {
		return "[{rabbit, [{quorum_tick_interval, 1000}]}].\n"
	}
	return "[].\n"
}

// Start starts the node like any server, and a second time if the first start fails: on a busy
// machine Erlang's kernel sometimes ends or hangs before RabbitMQ has begun.
func (r *RabbitMQ) Start(ctx context.Context) error {
	first := r.server.Start(ctx)
	if first == nil || ctx.Err() != nil {
		return first
	}
	if second := r.server.Start(ctx); second != nil {
		return errors.Join(first, second)
	}
	return nil
}

// Ctl returns the path of a script that runs rabbitmqctl against this node.
func (r *RabbitMQ) Ctl() string { return r.ctl }

// settle makes a node write its pending definitions. Mnesia logs the commit of a queue, and the
// validity of the commit, in two steps. A declaration is answered when the first step is on disk;
// the second step stays in memory for up to two seconds, and without it a crash undoes the commit.
// Ra keeps the names of quorum queues in memory for half a second.
const settle = `case whereis(mnesia_recover) of
	undefined -> ok;
	_ -> ok = mnesia_recover:sync(), ok = disk_log:sync(latest_log)
end, _ = [dets:sync(T) || T <- dets:all()], ok.`

// Settle returns when the queues, exchanges and bindings declared before it are on disk; an
// answered declaration alone may not be. If a Crash takes a queue, the messages confirmed into it
// are lost too.
func (r *RabbitMQ) Settle(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, r.ctl, "eval", settle).CombinedOutput(); err != nil {
		return fmt.Errorf("settle RabbitMQ: %w\n%s", err, out)
	}
	return nil
}

func newRabbitMQ(ctx context.Context, bin string, c RabbitMQConfig) (_ *RabbitMQ, err error) {
	s, err := newServer("rabbitmq")
	if err != nil {
		return nil, err
	}
	r := &RabbitMQ{server: *s, tls: c.TLS, management: c.Management, env: c.Env}
	scheme := "amqp"
	if c.TLS != nil {
		scheme = "amqps"
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	ports, err := freePorts(5)
	if err != nil {
		return nil, err
	}
	r.ports = rabbitPorts{amqp: ports[0], dist: ports[1], epmd: ports[2], ctl: ports[3], management: ports[4]}
	r.url = fmt.Sprintf("%s://guest:guest@%s:%d/", scheme, loopback, r.ports.amqp)
	r.ready = r.answers
	r.stop = syscall.SIGTERM

	if bin == "" {
		err = r.inDocker()
	} else {
		err = r.native(bin)
	}
	if err != nil {
		return nil, err
	}
	return r, r.Start(ctx)
}

// config returns the node's configuration file.
func (r *RabbitMQ) config(address string) string {
	listeners := fmt.Sprintf("listeners.tcp.1 = %s:%d", address, r.ports.amqp)
	if r.tls != nil {
		listeners = fmt.Sprintf("listeners.tcp = none\nlisteners.ssl.1 = %s:%d\n", address, r.ports.amqp) +
			"ssl_options.certfile = " + r.in("server.pem") + "\nssl_options.keyfile = " + r.in("server.key") +
			"\nssl_options.cacertfile = " + r.in("roots.pem") + "\nssl_options.verify = verify_none"
	}
	if r.management {
		listeners += fmt.Sprintf("\nmanagement.tcp.ip = %s\nmanagement.tcp.port = %d\ncollect_statistics_interval = 1000", address, r.ports.management)
	}
	return strings.Join([]string{
		listeners,
		"cluster_name = " + r.name,
		"disk_free_limit.absolute = 1MB",     // for tests only
		"raft.wal_max_size_bytes = 33554432", // allocated ahead of use
		"",
	}, "\n")
}

func (r *RabbitMQ) native(bin string) error {
	env, err := r.environment()
	if err != nil {
		return err
	}
	if err := r.startEpmd(env); err != nil {
		return err
	}
	r.orphaned = syscall.SIGKILL
	r.crash = func(proc *process) { proc.end(syscall.SIGKILL) }
	r.cleanup = func() { r.epmd.end(syscall.SIGKILL) }
	return r.use(bin, env)
}

// Use makes the node run the programs in bin from its next Start on: another version, with the
// existing data. It needs installed binaries.
func (r *RabbitMQ) Use(bin string) error {
	if r.epmd == nil {
		return errors.New("a node in Docker keeps its version")
	}
	env, err := r.environment()
	if err != nil {
		return err
	}
	return r.use(bin, env)
}

func (r *RabbitMQ) use(bin string, env []string) (err error) {
	if r.ctl, err = wrap(r.dir, "rabbitmqctl", env, filepath.Join(bin, "rabbitmqctl")); err != nil {
		return err
	}
	r.run = func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, "rabbitmq-server"))
		// With input allowed, the script replaces itself by the node, so that signals reach the
		// node; -noinput then disallows input.
		cmd.Env = append(cmd.Environ(), append(env, "RABBITMQ_ALLOW_INPUT=1", "RABBITMQ_SERVER_START_ARGS=-noinput")...)
		cmd.Dir = r.dir
		return cmd
	}
	return nil
}

// in returns the path of a file of the node.
func (r *RabbitMQ) in(name string) string { return filepath.Join(r.dir, name) }

// environment writes the node's configuration and returns the variables that make the node and its
// tools use only this configuration.
func (r *RabbitMQ) environment() ([]string, error) {
	in := r.in
	if r.tls != nil {
		if _, err := r.tls.write(r.dir, account{}); err != nil {
			return nil, err
		}
	}
	for name, text := range map[string]string{
		"rabbitmq.conf": r.config(loopback), "env.conf": "", "advanced.config": r.advanced(), "enabled_plugins": r.plugins(),
	} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	const interfaces = "-kernel inet_dist_use_interface {127,0,0,1}"
	return append([]string{
		"HOME=" + r.dir, // the cookie
		"RABBITMQ_NODENAME=" + r.name + "@localhost",
		"RABBITMQ_CONFIG_FILE=" + in("rabbitmq.conf"),
		"RABBITMQ_CONFIG_FILES=" + in("conf.d"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + in("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE=" + in("env.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + in("enabled_plugins"),
		"RABBITMQ_MNESIA_BASE=" + in("mnesia"),
		"RABBITMQ_LOG_BASE=" + in("logs"),
		"RABBITMQ_PID_FILE=" + in("pid"),
		fmt.Sprintf("RABBITMQ_NODE_PORT=%d", r.ports.amqp),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", r.ports.dist),
		fmt.Sprintf("ERL_EPMD_PORT=%d", r.ports.epmd),
		"ERL_EPMD_ADDRESS=" + loopback,
		fmt.Sprintf("RABBITMQ_CTL_DIST_PORT_MIN=%d", r.ports.ctl),
		fmt.Sprintf("RABBITMQ_CTL_DIST_PORT_MAX=%d", r.ports.ctl+ctlPorts),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + interfaces,
		"RABBITMQ_CTL_ERL_ARGS=" + interfaces,
	}, r.env...), nil
}

// startEpmd runs Erlang's port mapper in the foreground. Otherwise a node would start a port mapper
// that outlives the node.
func (r *RabbitMQ) startEpmd(env []string) error {
	path, err := exec.LookPath("epmd")
	if err != nil {
		return fmt.Errorf("RabbitMQ is installed without Erlang's epmd on PATH: %w", err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(cmd.Environ(), env...)
	r.epmd, err = start(cmd, filepath.Join(r.dir, "epmd.log"), syscall.SIGKILL)
	return err
}

func (r *RabbitMQ) inDocker() (err error) {
	conf := filepath.Join(r.dir, "rabbitmq.conf")
	if err := os.WriteFile(conf, []byte(r.config("0.0.0.0")), 0o644); err != nil {
		return err
	}
	plugins := filepath.Join(r.dir, "enabled_plugins")
	if err := os.WriteFile(plugins, []byte(r.plugins()), 0o644); err != nil {
		return err
	}
	if r.ctl, err = wrap(r.dir, "rabbitmqctl", nil, "docker", "exec", "--interactive", r.name, "rabbitmqctl"); err != nil {
		return err
	}
	r.run = func() *exec.Cmd {
		return dockerRun(r.name, []int{r.ports.amqp, r.ports.management},
			"--hostname", r.name, "--volume", conf+":/etc/rabbitmq/conf.d/90-test.conf:ro",
			"--volume", plugins+":/etc/rabbitmq/enabled_plugins:ro",
			"--volume", r.name+":/var/lib/rabbitmq", rabbitImage)
	}
	r.orphaned = syscall.SIGTERM // the client hands it on; SIGKILL would leave the container
	r.crash = func(proc *process) {
		_ = exec.Command("docker", "kill", r.name).Run()
		proc.end(syscall.SIGKILL)
	}
	r.cleanup = func() { dockerRemove(r.name) }
	return nil
}

// answers tells whether this very node accepts connections.
func (r *RabbitMQ) answers(context.Context) error {
	config := amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)}
	if r.tls != nil {
		config.TLSClientConfig = r.tls.client()
	}
	conn, err := amqp.DialConfig(r.url, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	if name, _ := conn.Properties["cluster_name"].(string); name != r.name {
		return fmt.Errorf("%q answers instead of %q", name, r.name)
	}
	return nil
}
