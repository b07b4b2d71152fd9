package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestDoctorNamesItsVirtualHost: that of --vhost, or that of the address of the broker.
func TestDoctorNamesItsVirtualHost(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	const broker = "BOXPAIR_AMQP_URL=amqp://guest:secret@rabbit:5672/night1"
	for _, c := range []struct {
		env  []string
		args []string
		want string
	}{
		{nil, nil, "/"},
		{[]string{broker}, nil, "night1"},
		{[]string{broker, "BOXPAIR_VHOST=night2"}, nil, "night2"},
		{[]string{broker}, []string{"--vhost", "night3"}, "night3"},
		{[]string{"BOXPAIR_AMQP_URL=no address"}, nil, "/"},
	} {
		_, out, errs := call(t, c.env, append([]string{"doctor", "--management", server.URL}, c.args...)...)
		if errs != "of RabbitMQ, the virtual host "+c.want+" is looked at\n" || !strings.Contains(strings.Join(strings.Fields(out), " "), `there is no virtual host "`+c.want+`", or no management API`) {
			t.Errorf("%v %v: %q, %q", c.env, c.args, out, errs)
		}
	}
	if _, _, errs := call(t, nil, "doctor", "--management", server.URL, "-o", "json"); errs != "" {
		t.Error(errs)
	}
	for _, path := range []string{"/", ""} {
		if status, _, errs := call(t, nil, "doctor", "--management", server.URL+path); status != exitOK {
			t.Errorf("%q: %d, %q", path, status, errs)
		}
	}
	if status, _, errs := call(t, nil, "doctor", "--management", server.URL+"/night1"); status != exitFailed || !strings.Contains(errs, "--management: has a path") || !strings.Contains(errs, "--vhost") {
		t.Errorf("%d, %q", status, errs)
	}
}
