"""`spectrum`: models along Γ, what exposure alone says of taste, and a few uniform ratings that say
how to mix them."""
