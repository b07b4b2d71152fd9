package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEveryOrderIsChargedOnceByAServiceThatIsKilled(t *testing.T) {
	for name, url := range map[string]string{"sqlite": "", "postgres": testenv.Postgres(t)} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(envDatabase, url)
			r, err := run(t.Context(), []string{os.Args[0]}, 16, 3)
			if err != nil || !r.OK || r.Kills != 3 || r.Repeated == 0 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

func TestOnlyARefusalForGoodIsRejected(t *testing.T) {
	t.Parallel()
	for status, rejected := range map[int]bool{
		http.StatusBadRequest: true, http.StatusPaymentRequired: true, http.StatusUnprocessableEntity: true,
		http.StatusRequestTimeout: false, http.StatusConflict: false, http.StatusTooManyRequests: false, http.StatusBadGateway: false,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		_, err := ask(t.Context(), server.URL, uuid.New(), Charge{Order: "order-1"})
		server.Close()
		if err == nil || strings.HasPrefix(err.Error(), "rejected: ") != rejected {
			t.Errorf("%d: %v", status, err)
		}
	}
}
