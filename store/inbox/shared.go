package inbox

import "context"

type sharedKey struct{}

// WithSharedTransaction returns a context for the function of [ClaimStore.ApplyGroup] if it runs a
// handler for each message: what one handler sets for the transaction must not be seen by the next.
// A store refuses it with [ErrNotShared].
func WithSharedTransaction(ctx context.Context) context.Context {
	return context.WithValue(ctx, sharedKey{}, true)
}

// SharesTransaction tells whether ctx, or a context that it comes from, is of
// [WithSharedTransaction].
func SharesTransaction(ctx context.Context) bool {
	shares, _ := ctx.Value(sharedKey{}).(bool)
	return shares
}
