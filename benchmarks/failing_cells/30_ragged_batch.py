"""Load a rank's part of a text data set in batches."""

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TEXTS = ["to be or not to be that is the question", "the rest is silence", "brevity is the soul of wit"] * 40


class Words(Dataset):
    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, index):
        return torch.tensor([len(word) for word in TEXTS[index].split()])


def collate(samples):
    tokens = torch.stack(samples)
    return tokens[:, :-1], tokens[:, 1:]


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
sampler = DistributedSampler(Words(), shuffle=False)
loader = DataLoader(Words(), batch_size=8, sampler=sampler, collate_fn=collate)
for inputs, labels in loader:
    print(inputs.shape, labels.shape)
